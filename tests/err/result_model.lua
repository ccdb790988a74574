return normal {}
