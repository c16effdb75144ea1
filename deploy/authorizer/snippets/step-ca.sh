# The webhook of a provisioner that asks keygate before a certificate is issued. The command prints
# the id and the signing secret for `webhooks` of the authorizer. Not run by the tests.

# keygate: begin
step ca provisioner webhook add PROVISIONER keygate \
  --kind AUTHORIZING --cert-type ALL --url https://127.0.0.1:9191/
# keygate: end
