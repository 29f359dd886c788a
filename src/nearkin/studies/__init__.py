"""Many runs: named rows × seeds, resumed and summed up; comparisons, the reality check, published tables, searches."""
