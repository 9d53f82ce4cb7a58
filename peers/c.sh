B=http://127.0.0.1:5995
c() { echo "--- $*" | cut -c1-300; curl -s -m 10 -w '\n[%{http_code} %{content_type}]\n' "$@" | cut -c1-1500; }
