"""The tables of the store, in SQLite or PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from agent_tools.containers.records import NAMED

metadata = sa.MetaData()

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of the columns below, of its events, and of what calls told
    sa.Column("container_id", sa.String(64)),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("input", sa.Text, nullable=False),  # a line for each item, which begins with its id
    sa.Column("conversation", sa.Text, nullable=False),
    sa.Index("ix_responses_share", "owner", "bytes"),  # so that no row is read to add them up
)
items = sa.Table(
    "items",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("response_id", sa.String(64), nullable=False, index=True),
)
background = sa.Table(  # responses in the background that have not ended, and the gateway of each
    "background",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("gateway", sa.Text, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
)
events = sa.Table(  # those of responses that were made in the background, to be streamed again
    "events",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
calls = sa.Table(
    "calls",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("told", sa.Text, nullable=False),
    sa.Column("server_fields", sa.Text, nullable=False, server_default=""),
)
marks = sa.Table(  # what conversations are known by, and the container of each
    "marks",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("container_id", sa.String(64)),
    sa.Column("asked", sa.String(64), nullable=False),
)
_named = sa.text(f"status = 'active' AND origin LIKE '{NAMED}%'")
containers = sa.Table(
    "containers",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("last_active_at", sa.Float, nullable=False),
    sa.Column("idle_minutes", sa.Float, nullable=False),
    sa.Column("memory_limit", sa.String(8), nullable=False),
    sa.Column("network", sa.Text, nullable=False, server_default=""),  # domains, with a space between them
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("has_run", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False, default=0),  # of its files, when they were last counted
    sa.Column("gateway", sa.String(64), nullable=False, server_default="", index=True),  # that has its sandbox
    sa.Column("wanted_by", sa.String(64), nullable=False, server_default=""),  # the gateway that waits for it
    sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),  # times that a gateway took it
    sa.Column("origin", sa.String(16), nullable=False, server_default=""),
    sa.Index(
        "ix_containers_named", "owner", "origin", "name", unique=True, sqlite_where=_named, postgresql_where=_named
    ),
)
gateways = sa.Table(  # those that are alive
    "gateways",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),  # the process, as labels tell it
    sa.Column("folder", sa.String(64), nullable=False),  # the id of its data_dir
    sa.Column("address", sa.Text, nullable=False),
)
container_files = sa.Table(
    "container_files",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("container_id", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("upload_id", sa.String(64), nullable=False, server_default=""),  # the upload that it is a copy of
    sa.UniqueConstraint("container_id", "path"),
)
uploads = sa.Table(
    "uploads",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
)
wire_values = sa.Table(
    "wire_values",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
)
conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False, index=True),
    sa.Column("notes", sa.Text, nullable=False),  # the client's metadata, as JSON
    sa.Column("container_id", sa.String(64)),
)
conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("id", sa.String(80), primary_key=True),  # the conversation's, a colon, and the item's number in it
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("conversation_id", sa.String(64), nullable=False, index=True),
    sa.Column("item_id", sa.String(64), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of the columns below
    sa.Column("item", sa.Text, nullable=False),
    sa.Column("told", sa.Text, nullable=False),  # what the model was told of a call
    sa.Column("server_fields", sa.Text, nullable=False, server_default=""),  # those of its model's server, as JSON
    sa.Index("ix_conversation_items_share", "owner", "bytes"),
)
