"""The whole loop on scikit-learn's handwritten digits, through the same workflows as every command."""
