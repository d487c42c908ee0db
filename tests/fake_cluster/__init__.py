"""A Kubernetes API server for tests: the calls of our engine, with Docker containers of this machine for pods.

`python -m tests.fake_cluster` prints its URL and serves until its stdin ends. It shows that the real guest, spoken to
over a real exec stream, does all that sessions ask of it. It cannot show scheduling, what a network does about
policies, the kubelet's limits, admission beyond the schema, or how a loaded API server behaves.
"""

from tests import iri_grammars

iri_grammars.put_off()  # before the server imports jsonschema, in a process of its own
