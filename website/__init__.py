"""What makes the site out of the pages of docs/, and what measures and guards their text."""
