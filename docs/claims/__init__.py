"""What the pages say with numbers: one module for each page that has measured ones."""
