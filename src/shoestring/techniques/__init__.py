"""What saves memory, done to a model or an optimizer in the same way where it is estimated and where it is trained."""
