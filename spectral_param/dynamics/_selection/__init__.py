"""The choice of a fit by forecasts of rows that were held out."""
