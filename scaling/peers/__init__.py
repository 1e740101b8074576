"""The peers that come with the package, one file each: other systems that differentiate."""
