"""The nightly check as a DAG of Airflow 3; exit codes 5 and 7 fail the task."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

CHECK = (
    "mlx consistency digits@production --traffic /srv/mlx/traffic --last 1d --catch-up 7 "
    "--report /srv/mlx/nightly/digits"
)

with DAG(
    dag_id="mlx_nightly_consistency",
    schedule="10 2 * * *",
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow takes it as UTC
    catchup=False,  # mlx knows itself which nights were missed
    max_active_runs=1,
) as dag:
    BashOperator(
        task_id="consistency",
        bash_command=CHECK,
        env={"MLX_REGISTRY": "http://mlflow.internal:5000"},
        append_env=True,
        retries=0,  # a verdict is no accident
        execution_timeout=timedelta(hours=2),
    )
