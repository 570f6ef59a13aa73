"""An Airflow DAG: one night's run, then its gates as a task of their own."""

from datetime import datetime, timedelta

from airflow import DAG

try:
    from airflow.providers.standard.operators.bash import BashOperator  # Airflow 3
except ImportError:
    from airflow.operators.bash import BashOperator  # Airflow 2

with DAG("rag_nightly", schedule="15 1 * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
    run = BashOperator(
        task_id="run",
        # 1 means done with a failed gate: the next task says so, and a retry would not change it
        bash_command="cd /srv/rag && batchpaged run rag.yaml --run-dir runs/{{ ds }} || [ $? -eq 1 ]",
        retries=3,
        retry_delay=timedelta(minutes=5),
        execution_timeout=timedelta(hours=6),
    )
    gates = BashOperator(
        task_id="gates",
        bash_command="cd /srv/rag && jq -e 'all(.gates[]; .passed)' runs/{{ ds }}/report.json",
        retries=0,
    )
    run >> gates
