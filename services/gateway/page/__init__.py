"""The gateway's own page, `/ui`: what an operator sees without Prometheus or Grafana.

    watch      asks the routers, at most once a second for however many pages
    parts      a request's life as the parts of a bar
    rows       messages become rows of JSON
    history    the last minutes in memory: percentiles, rates, tokens
    routes     HTTP: the page's files, and `/ui/data/...` that it polls

The page itself is in `services/gateway/ui`.
"""
