"""What workers let an operator see, if asked: metrics, health, traces and logs. None of it holds what users wrote."""
