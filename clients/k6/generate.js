// Load with k6 (gRPC over reflection): so many callers for so long, and what their calls must keep to.
//   k6 run clients/k6/generate.js
//   k6 run --env CALLERS=64 --env DURATION=1m --env OUTPUT_TOKENS=200 clients/k6/generate.js
import grpc from 'k6/net/grpc';
import { check } from 'k6';
import { Trend } from 'k6/metrics';

const ADDRESS = __ENV.ADDRESS || '127.0.0.1:50051';
const MODEL = __ENV.MODEL || 'smollm2-135m-instruct';
const OUTPUT_TOKENS = Number(__ENV.OUTPUT_TOKENS || 32);

export const options = {
  scenarios: {
    callers: { executor: 'constant-vus', vus: Number(__ENV.CALLERS || 8), duration: __ENV.DURATION || '10s' },
  },
  thresholds: {
    checks: ['rate>0.99'],
    first_token: ['p(99)<2000'],
  },
};

const firstToken = new Trend('first_token', true);
const client = new grpc.Client();

export default function () {
  if (__ITER === 0) {
    client.connect(ADDRESS, { plaintext: true, reflect: true });
  }
  const request = { model: MODEL, prompt: 'The sea is', max_output_tokens: OUTPUT_TOKENS };
  const answer = client.invoke('inferwire.v1.InferenceService/Generate', request, { timeout: '60s' });
  const answered = check(answer, { answered: (it) => it.status === grpc.StatusOK });
  if (answered) {
    firstToken.add(parseFloat(answer.message.timings.firstTokenTime) * 1000);
  }
}
