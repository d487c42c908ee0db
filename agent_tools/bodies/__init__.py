"""Bodies of requests: every door reads JSON, messages and files of its clients here, within the same bounds."""
