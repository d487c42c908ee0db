"""What the gateway keeps: tables, records of them, and the store that reads and writes these."""
