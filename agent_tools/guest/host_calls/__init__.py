"""Functions of the host, as the code calls them."""
