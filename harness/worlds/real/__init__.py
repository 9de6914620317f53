"""What real worlds share: processes that are led and really killed, attempts of Spark, and the judge's client."""
