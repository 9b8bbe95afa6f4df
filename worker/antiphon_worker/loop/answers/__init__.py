"""What an answer must be: JSON that matches the schema of its turn."""
