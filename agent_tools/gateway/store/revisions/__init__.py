"""The revisions of the schema, oldest first by their `down_revision`; each is applied once, and never changed again.

A change of the tables (records.py) needs a file here: `revision`, `down_revision`, and an `upgrade` made of
Alembic's operations.
"""
