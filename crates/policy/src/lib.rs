//! Pure scheduling decisions: values in, a decision out.
