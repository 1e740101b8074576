"""What a case may ask for beyond a dense derivative on one machine, and what is learned about its program."""
