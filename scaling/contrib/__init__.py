"""Export measured run times to the file formats of other tools, such as Extra-P."""
