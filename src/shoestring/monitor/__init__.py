"""What is happening: events for the record, samples of memory, progress for the person who waits."""
