"""What clients send: every door has its connections and reads JSON, messages and files here, within the same bounds."""
