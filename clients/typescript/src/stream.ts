// npm start -- ADDRESS MODEL PROMPT: streams a generation to the terminal.

import { status, type ServiceError } from "@grpc/grpc-js";

import type { GenerateRequest } from "../generated/inferwire/v1/GenerateRequest.js";
import type { StreamGenerateResponse__Output } from "../generated/inferwire/v1/StreamGenerateResponse.js";
import { connect, reasonOf } from "./client.js";

const DEADLINE_S = 60;

/** Yields the text of a generation as it comes. Throws the service's error, or one of its own for a stream cut short. */
async function* textOf(target: string, request: GenerateRequest): AsyncGenerator<string, void> {
  const client = connect(target);
  const call = client.StreamGenerate(request, { deadline: Date.now() + 1000 * DEADLINE_S });
  let isComplete = false;
  try {
    for await (const event of call as AsyncIterable<StreamGenerateResponse__Output>) {
      switch (event.event) {
        case "delta":
          yield event.delta?.text ?? "";
          break;
        case "completed":
          isComplete = true;
          break;
        default: // started, progress, finished, and what later servers may send
          break;
      }
    }
    if (!isComplete) throw new Error("the stream ended without Completed: it is broken");
  } finally {
    call.cancel(); // whoever stops reading ends the generation on the server
    client.close();
  }
}

async function main([target, model, prompt]: string[]): Promise<number> {
  if (target === undefined || model === undefined || prompt === undefined) {
    console.error("usage: npm start -- ADDRESS MODEL PROMPT");
    return 2;
  }
  try {
    for await (const text of textOf(target, { model, prompt, max_output_tokens: 40, sampling: { seed: 7 } })) {
      process.stdout.write(text);
    }
    process.stdout.write("\n");
    return 0;
  } catch (error) {
    if (!isServiceError(error)) throw error;
    const { reason, started, retryAfterMs } = reasonOf(error);
    console.error(`${status[error.code]} ${reason}, started: ${started}: ${error.details}`);
    if (retryAfterMs !== undefined) console.error(`a retry is useful after ${retryAfterMs} ms`);
    return 1;
  }
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && "metadata" in error;
}

process.exitCode = await main(process.argv.slice(2));
