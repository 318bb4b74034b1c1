"""The OpenAI-compatible HTTP door: a thin translation to InferenceService.

    app                                  puts it all together
    api, models, health                  the routes
    doorway, caller, bodies, gone        around each request: ids, keys, its body, its client
    schemas, fields, options             what bodies may say, and the client's options for it
    conversations, tooling, tools        the same for messages and tools
    completions, chat, tokens            what a route does, and how its answers look
    generation                           a stream that goes on when its router dies
    speech, tool_calls, json_scan        what a chat's text says: content, or calls of tools
    answering, sse, logprobs, usage      what generations' answers have in common
    errors                               errors as OpenAI's clients know them
    answers, openapi                     what /openapi.json says of all that
    page, ui                             the operator's page

Knows HTTP, OpenAI's shapes and server-sent events; no tokenizer, no Redis, no workers.
"""
