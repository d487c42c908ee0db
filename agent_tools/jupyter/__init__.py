"""The Jupyter door: any client of Jupyter's messages on a kernel in a sandbox."""
