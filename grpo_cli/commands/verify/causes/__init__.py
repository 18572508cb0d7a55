"""Why a record and its evaluation differ: what people do wrongly, each as another evaluation."""
