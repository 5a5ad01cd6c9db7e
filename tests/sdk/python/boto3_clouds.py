"""`boto3` against the simulated clouds."""

import json

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from clouds import *

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
CONFIG = Config(retries={"total_max_attempts": 1}, read_timeout=10)
BODY = json.dumps(
    {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 2000,
        "messages": [{"role": "user", "content": ASK}],
    }
)


def bedrock(**credential):
    return boto3.client(
        "bedrock-runtime", region_name=REGION, endpoint_url=PLATFORMS["bedrock", "anthropic"],
        config=CONFIG, **credential,
    )


def whole(client):
    answer = client.invoke_model(modelId=MODEL, body=BODY)
    same("contentType", answer["contentType"], "application/json")
    message = json.loads(answer["body"].read())
    thinking, text = message["content"]
    same("content", (thinking["thinking"], text["text"]), (THOUGHT, TEXT))
    tokens = answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-bedrock-output-token-count"]
    same("tokens", tokens, str(message["usage"]["output_tokens"]))


def stream(client):
    answer = client.invoke_model_with_response_stream(modelId=MODEL, body=BODY)
    same("contentType", answer["contentType"], "application/json")
    events = [json.loads(event["chunk"]["bytes"]) for event in answer["body"]]
    pieces = [event["delta"].get("text", "") for event in events if "delta" in event]
    same("pieces", "".join(pieces), TEXT)
    same("the last event", events[-1]["type"], "message_stop")
    true("its metrics", events[-1]["amazon-bedrock-invocationMetrics"]["outputTokenCount"] > 0)


def count(client):
    counted = client.count_tokens(modelId=MODEL, input={"invokeModel": {"body": BODY}})
    true(f"tokens: {counted['inputTokens']}", 0 < counted["inputTokens"] < 100)


client(
    "bedrock", bedrock, aws("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
    ClientError, r"\((InvalidSignature|UnrecognizedClient)Exception\)", whole, stream, count,
)
none("bedrock: whole", "it sends API keys over HTTPS alone, which the simulators do not have")

run(boto3.__version__)
