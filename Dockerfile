# comatch serve as an ordinary user.
#
#   docker build -t comatch .
#   docker run --rm --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -e COMATCH_TOKEN="$(openssl rand -hex 16)" -v "$PWD/runs/mine:/run-folder:ro" comatch
FROM python:3.12-slim

RUN useradd --create-home --uid 10001 comatch
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu ".[web]"

USER comatch
ENV COMATCH_CACHE=/tmp/comatch PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["comatch", "serve", "/run-folder", "--host", "0.0.0.0", "--port", "8000"]
