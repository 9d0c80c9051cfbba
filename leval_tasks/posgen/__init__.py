"""PosGen: sequences and tasks that test a model past its training length."""
