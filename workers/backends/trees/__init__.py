"""Decision trees of XGBoost, LightGBM and scikit-learn, in the place of Triton's backend `fil` (extra `trees`). It
imports `backends`."""
