"""The execution graph of a job: columns, validation, compression, and Chakra .et in and out."""
