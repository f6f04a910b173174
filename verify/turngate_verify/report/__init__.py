"""The page that shows what a command has found."""
