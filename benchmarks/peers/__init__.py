"""The library beside other people's, with the same rows, threads and seconds."""
