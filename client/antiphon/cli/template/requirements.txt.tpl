antiphon[worker,cli]=={{version}}
