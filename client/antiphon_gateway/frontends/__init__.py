"""What front ends speak: the UI message stream of the AI SDK, and AG-UI, with their routes."""
