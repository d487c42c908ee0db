"""One turn: the loop between a model and its tools, and how a reply is read."""
