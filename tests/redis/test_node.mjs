// ioredis and node-redis against a running service: the port and an API key, or nothing, are the arguments.

import assert from 'node:assert/strict';
import { Redis } from 'ioredis';
import { createClient } from 'redis';

const [port, key] = process.argv.slice(2);

async function ioredis(name) {
  const client = new Redis({ port: Number(port), password: key, lazyConnect: true, maxRetriesPerRequest: 1 });
  await client.connect();
  const call = (line) => client.call(...line.split(' '));
  await call(`DEL ${name}`);
  // Much larger than its content: hardly any two of its items collide.
  assert.equal(await call(`CF.RESERVE ${name} 100000`), 'OK');
  assert.equal(Number(await call(`CF.ADD ${name} u1`)), 1);
  assert.equal(Number(await call(`CF.ADDNX ${name} u1`)), 0);
  assert.deepEqual((await call(`CF.MEXISTS ${name} u1 u2`)).map(Number), [1, 0]);
  await assert.rejects(call(`CF.RESERVE ${name} 1000`), /item exists/);
  const pipeline = client.pipeline();
  for (let number = 0; number < 1000; number += 1) {
    pipeline.call('CF.ADD', name, `p${number}`);
  }
  pipeline.call('CF.COUNT', name, 'p999');
  const answers = await pipeline.exec();
  assert.ok(answers.every(([error, answer]) => error === null && Number(answer) === 1));
  const keys = [];
  for await (const page of client.scanStream({ match: `${name}*` })) {
    keys.push(...page);
  }
  assert.deepEqual(keys, [name]);
  assert.equal(await client.exists(name), 1);
  assert.equal(await client.del(name), 1);
  assert.equal(await client.quit(), 'OK');
}

async function nodeRedis(name, RESP) {
  const client = await createClient({ socket: { port: Number(port) }, password: key, RESP })
    .on('error', (error) => { throw error; })
    .connect();
  await client.del(name);
  assert.equal(await client.cf.reserve(name, 1000, { BUCKETSIZE: 4 }), 'OK');
  assert.equal(await client.cf.add(name, 'u1'), true);
  assert.equal(await client.cf.addNX(name, 'u1'), false);
  assert.deepEqual(await client.cf.insert(name, ['u2', 'u3']), [true, true]);
  assert.equal(await client.cf.exists(name, 'u1'), true);
  assert.equal(await client.cf.exists('nowhere', 'u1'), false);
  assert.equal(await client.cf.count(name, 'u1'), 1);
  assert.equal(await client.cf.del(name, 'u1'), true);
  const info = await client.cf.info(name);
  assert.equal(info['Number of items inserted'], 2);
  assert.deepEqual(await Promise.all(Array.from({ length: 1000 }, (_, number) => client.cf.add(name, `p${number}`))), Array(1000).fill(true));
  assert.equal(await client.type(name), 'MBbloomCF');
  assert.equal(await client.del(name), 1);
  await client.close();
}

await ioredis('ioredis');
await nodeRedis('node-redis-2', 2);
await nodeRedis('node-redis-3', 3);
if (key) {
  const stranger = new Redis({ port: Number(port), lazyConnect: true, retryStrategy: null, maxRetriesPerRequest: 0 });
  stranger.on('error', () => {});
  await assert.rejects(async () => {
    await stranger.connect();
    await stranger.call('CF.EXISTS', 'x', 'y');
  }, /NOAUTH|closed/);
  stranger.disconnect();
}
console.log('ioredis and node-redis ok');
