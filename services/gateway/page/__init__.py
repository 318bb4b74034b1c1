"""The gateway's own page, `/ui`: what an operator sees without Prometheus or Grafana.

    watch        asks the routers, at most once a second for however many pages (`flights`)
    upstream     one router, as it is asked
    access       whose key may see it
    rows         messages become rows of JSON; `fleet_rows` those of the fleet
    parts        a request's life as the parts of a bar
    history      the last minutes in memory: percentiles, rates, tokens
    verdict      the doctor's words on the last seconds
    routes       HTTP: the page's `files`, and `/ui/data/...` that it polls
    serving      puts it into the gateway

The page itself is in `services/gateway/ui`.
"""
