"""Tools for those who release or audit the project: its dependencies, and the engines it runs on. Not packaged."""
