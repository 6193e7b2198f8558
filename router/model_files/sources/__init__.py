"""Where the files of a model come from: the Hugging Face Hub, an object store, a web server, a directory. Each source
lists files with sizes and checksums and reads from any position of them; its library is imported when it is opened.
It imports `model_files` and `process`."""
