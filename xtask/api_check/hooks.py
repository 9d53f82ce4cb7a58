"""What schemathesis changes in the requests that it generates."""

import schemathesis


@schemathesis.hook
def map_body(context, body):
    """Writes a whole number without a fraction. JSON Schema takes `2.0` for an integer; the server does not, as its description says."""
    return whole(body)


def whole(value):
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: whole(member) for name, member in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value
