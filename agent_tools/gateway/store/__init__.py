"""The gateway's store: tables, records as values, and the reading and writing of both."""
