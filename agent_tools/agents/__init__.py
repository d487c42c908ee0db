"""Models and tools working together. Importing this starts nothing."""
