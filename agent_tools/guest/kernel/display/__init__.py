"""Displays of a cell: figures as pictures, and all that is made for a browser as text, since none is there."""
