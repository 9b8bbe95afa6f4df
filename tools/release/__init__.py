"""The files of a release: the wheel, the source, and the pinned packages of the image."""
