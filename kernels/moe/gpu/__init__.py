"""Products of rows with the experts that they have chosen, in Triton. It may import the other kernel families' `gpu`
folders."""
